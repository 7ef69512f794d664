"""Sentences that several guarantees assume, said in one way."""

PUBLIC_SETTINGS = (
  'The rating scale and all settings are public and were not chosen by '
  'looking at the ratings.'
)
PUBLIC_FEATURES = (
  'The rating scale, the user features and all settings are public and were '
  'not chosen by looking at the ratings.'
)
PUBLIC_IDS = (
  'The lists of user and item ids are public; where they were taken from the '
  'ratings file, so is the fact that each of them has at least one rating.'
)
ONE_OF_DUPLICATES = (
  'A rating is what is left of a (user, item) pair once duplicates are '
  'resolved.'
)
ONE_RELEASE = (
  'This covers one release. Every further release computed from the same '
  'ratings adds to the loss, also that of a run thrown away after its '
  'accuracy was seen.'
)
ONE_RATING = (
  'Several ratings of one user together are protected less than one alone.'
)
SAME_FLOATS = (
  "What is computed in floating point of one rating, or of one user's ratings "
  '(predictions, residuals, labels, weights), is taken to come out the same in '
  'whatever slot or chunk of memory it is computed, by a program that is the '
  'same for neighbouring data sets: it does not depend on which ratings there '
  'are besides. Tests look for differences; nothing proves that there are '
  'none.'
)
PUBLIC_PAIRS = 'Which user rated which item is public.'
WHOLE_USERS = (
  'The list of item ids and the number of users are public, and the same '
  'whether or not a user is there: a user who is not there is one without '
  'ratings. Where these were taken from the ratings file, an item that a '
  'single user rated tells of that user, and so does the number of users to '
  'someone who knows all the others.',
  'The list of user ids is not released.',
  'A user is all ratings under one user id: a person with two ids is '
  'protected less.',
)
EXACT_TERMS = (
  'The random generator (Threefry, 64-bit key) is as good as random. Terms of '
  'users are integers and their sums exact. Noise is rounded to the lattice of '
  'the sums and dithered, but each Gaussian is evaluated in float32 from 64 '
  'random bits and ends at 9.5 standard deviations; delta pays for the end of '
  'the tails. Timing and memory are not covered.'
)
# Of clients that answer about each of their (user, item) cells.
ANSWERS = (
  'A client answers once about a cell and keeps the answer. A new answer, also '
  'one about a rating that was changed or added later, adds to the loss of '
  'that cell; whatever is computed from kept answers does not.',
  'Several ratings of one user together are protected less than one alone: k '
  'records have k times epsilon, and the profile of a user as a whole is '
  'hardly protected.',
  SAME_FLOATS,
  'The random generator on the client (Threefry, 64-bit key, each client its '
  'own) is as good as random. Coins are integers, without floating point. '
  'Timing and memory are not covered.',
)

# Who is defended against.
JOINT_ADVERSARY = (
  "anyone who sees what is released and knows all other users' ratings, the "
  'item ids, the number of users, the code and its settings, but not the '
  'random key; also all other users together, with what they compute from '
  'their own ratings (joint differential privacy)'
)
RATING_ADVERSARY = (
  'anyone who sees what is released and knows every other rating, the id '
  'lists, the code and its settings, but not the random key; a user who also '
  'sees their own predictions is covered for the ratings of all others'
)
ANSWERS_ADVERSARY = (
  'the server itself, which sees every answer of every client, and anyone else '
  'who does; they may know every other record, the id lists, the code and its '
  'settings, but not the random keys of the clients'
)
OWN_VECTORS = (
  'Each user sees only their own vector and bias; these are computed from '
  'their own ratings and are not covered.'
)


def for_users(at_home: str) -> tuple[str, ...]:
  """Where items are released and whole users are protected.

  `at_home` says what users compute of their own, which is not covered.
  """
  rest = (at_home, ONE_RELEASE, SAME_FLOATS, EXACT_TERMS)
  return (PUBLIC_SETTINGS, *WHOLE_USERS, *rest)


def for_ratings(at_home: str) -> tuple[str, ...]:
  """The same where single ratings are protected."""
  rest = (at_home, ONE_RELEASE, SAME_FLOATS, EXACT_TERMS, ONE_RATING)
  return (PUBLIC_SETTINGS, PUBLIC_IDS, ONE_OF_DUPLICATES, *rest)


USERS_AT_HOME = for_users(OWN_VECTORS)
