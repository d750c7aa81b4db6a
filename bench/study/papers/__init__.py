"""The evaluations of the four papers redone, beside what they published: `serfer study paper NAME`."""
