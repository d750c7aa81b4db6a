"""Commands that read and change the registry of applications, whether or not anything is served."""
