"""MArk's forecasts of a load: how well they do, and the training of its LSTM."""
