"""The evaluations of the four papers redone, beside what they published: `serfer bench paper NAME`."""
