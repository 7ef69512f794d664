"""The Flower app: a relay on nodes, the recommender on its own host."""
