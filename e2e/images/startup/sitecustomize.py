"""Python reads this when it starts, in the tests' engines only: fewer looks for garbage while SGLang is imported.

SGLang's three processes per engine make two thousand looks each while they import 7000 modules, which are a sixth of
their start's CPU time, and there is no garbage yet. With these thresholds garbage is still collected, after more of it.
"""

import gc

gc.set_threshold(50_000, 20, 100)
