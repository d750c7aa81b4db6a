"""A plan: the chain of stages that a network becomes, with every offset that a task will ever need.

    stage 0 (2x2)           stage 1 (col2)         stage 2 (1)
    ┌────┬────┐  pieces     ┌────┬────┐  pieces    ┌─────────┐
    │tile│tile│ ──────────▶ │    │    │ ─────────▶ │  tile   │ ──▶ logits
    ├────┼────┤             │tile│tile│            └─────────┘
    │tile│tile│             │    │    │
    └────┴────┘             └────┴────┘

A stage passes on one tensor, or a few where the network is cut across branches; a later stage may read what any stage
before it wrote. A tile writes its share of all of them once, as cells in a fixed order, each followed by its checksum
(serfer/core/checksum.py). A piece says which cells a tile reads from one tile before it, as ranges. Offsets are counted
in elements of one image; a batch of N images multiplies them by N, while a cell has one checksum whatever N is.

Consecutive stages may be a gang: one function runs them all, invoked once for each tile. In a gang, a tile keeps what
it wrote, and what others read of it travels through the store while the functions run, as cells of the same layout. Any
of its stages can be run as an ordinary stage too.

A vector of K values is a map of one row: 1 x K. So its columns are cut by the same rectangles as maps are.
"""

from serfer.core.plan.codec import FORMAT, answer_digest, dump_plan, parse_plan, sealed
from serfer.core.plan.detection import DetectionHead
from serfer.core.plan.model import (
    ACTIVATIONS,
    AS_IS,
    CACHE,
    CONTAINER,
    FETCHED,
    IMAGE,
    INLINE,
    MAX_ELEMENTS,
    OBJECTS,
    OUTPUT_TYPES,
    PARTLY_TIMED,
    PATHS,
    PREDICTED,
    SCORES,
    TIMED,
    WEIGHT_PLACES,
    ZIP,
    Alternative,
    Artefact,
    Cell,
    DeploymentOption,
    FileTensors,
    Function,
    Gang,
    Input,
    MapBoxes,
    ModelChange,
    Operator,
    OutputTensor,
    PackageLimit,
    Padding,
    Piece,
    Plan,
    Range,
    Shape,
    Stage,
    Tile,
    explained,
    stored_bytes,
)
from serfer.core.plan.preprocess import (
    CHANNELS,
    INTERPOLATIONS,
    OPENCV_BILINEAR,
    PAD_PLACES,
    ImageLimits,
    Levels,
    Pad,
    Placement,
    Preprocess,
    SideLimit,
)
from serfer.core.plan.sizes import AxisForm, InputSizes, PlanSizes, SideSizes
from serfer.core.plan.statistics import POSITION, MapStatistics
from serfer.core.plan.validation import MAX_RANK, check_sound, classes_of, labels_fit
from serfer.core.plan.windows import (
    IMAGE_READ,
    NO_TILE,
    AxisEnd,
    AxisResult,
    AxisRule,
    AxisWindow,
    AxisWindows,
    ImageWindow,
    ImageWindows,
    KeptMap,
    SizeRules,
    StatisticsPass,
    WindowRules,
    Windows,
)
