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
