"""What programs do with torch: some hundreds of calls, each the same whenever it is made."""

from tests.recorder.hooks.user_calls.calls import Calls
from tests.recorder.hooks.user_calls.compiling import COMPILING, SCRIPTS
from tests.recorder.hooks.user_calls.copies import COPIES, SWAPS
from tests.recorder.hooks.user_calls.gradients import GRADIENTS
from tests.recorder.hooks.user_calls.indexing import INDEXING
from tests.recorder.hooks.user_calls.operators import OPERATORS
from tests.recorder.hooks.user_calls.questions import QUESTIONS
from tests.recorder.hooks.user_calls.subclasses import SUBCLASSES
from tests.recorder.hooks.user_calls.training import LOADERS, TRAINING
from tests.recorder.hooks.user_calls.values import VALUES

CALLS: Calls = {
    **VALUES, **INDEXING, **OPERATORS, **QUESTIONS, **COPIES, **SUBCLASSES, **GRADIENTS, **SCRIPTS, **TRAINING,
    **SWAPS, **LOADERS,
}  # fmt: skip

COMPILED: Calls = COMPILING
"""By torch.compile, each from scratch: a second or two in all."""

HEAVY = frozenset(
    {
        *SCRIPTS,
        "overridable functions", "source of functions", "signatures of methods", "help", "type hints", "Adam",
        "RMSprop", "Adagrad", "LBFGS with a closure", "Adam, fused", "OneCycleLR", "LambdaLR", "CosineAnnealingLR",
        "SGD with momentum, for each", "SGD with a rate that is a tensor", "operators by name on integers",
        "operators by name with what no tensor knows", "gradcheck", "an averaged model", "parallel",
        "names in pickles",
        *(name for name in OPERATORS if name.startswith("a tensor of integers and")),
    }
)  # fmt: skip
"""Each runs thousands of functions of Python's, of which a profiler's window notes every one."""
