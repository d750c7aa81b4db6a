import os

from hypothesis import settings

# What tests start writes into pipes as it does for users: what it does not flush, nobody sees.
os.environ.pop("PYTHONUNBUFFERED", None)

# A busy machine takes its time: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
