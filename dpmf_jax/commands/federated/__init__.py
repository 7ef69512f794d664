"""A deployment: recommender, aggregator and nodes as processes of their own."""
