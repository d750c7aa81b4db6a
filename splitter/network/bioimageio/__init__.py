"""Model packages of bioimage.io: a network with its preprocessing, its tests and the halo that it is published with."""
