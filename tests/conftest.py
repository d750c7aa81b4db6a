from hypothesis import settings

# A busy machine takes its time: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
