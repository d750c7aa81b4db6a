"""Kinds of ONNX operators that are handled alike."""

from __future__ import annotations

POOLS = frozenset({"MaxPool", "AveragePool"})
WINDOWED = POOLS | {"Conv"}
PER_VALUE = frozenset(
    {
        *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh"),
        *("Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
        *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid"),
        *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
    }
)
POINTWISE = PER_VALUE | {"BatchNormalization", "LRN", "PRelu"}
BROADCAST = frozenset(
    {
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min"),
        *("Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    }
)
