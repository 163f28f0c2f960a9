"""Which statements keep more with every step, by the text of the program alone."""

import ast

import pytest

from efprof.facts.host_growth_statements import keeping_statements
from efprof.facts.step_code import StepCode

LOOP = """\
def train(model, loader, optimizer):
    {made}
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        {statement}
"""
METHOD = """\
class Trainer:
    def __init__(self):
        self.log = []
        self.cache = {{}}

    def run(self, loader):
        for epoch in range(3):
            for batch in loader:
                self.train_step(batch)

    def train_step(self, batch):
        loss = self.model(batch)
        loss.backward()
        self.note(batch)

    def note(self, batch):
        {statement}
"""


def found(text: str, backward: int, function: str) -> list[int]:
    """The lines of the statements."""
    trees = {"train.py": ast.parse(text)}
    code = StepCode(trees, [("train.py", backward, function)])
    return [statement.line for statement in keeping_statements(code)]


def in_loop(made: str, statement: str) -> list[int]:
    return found(LOOP.format(made=made, statement=statement), 5, "train")


def in_method(statement: str, more: str = "") -> list[int]:
    return found(METHOD.format(statement=statement) + more, 13, "Trainer.train_step")


@pytest.mark.parametrize(
    ("made", "statement"),
    [
        ("log = []", "log.append(describe(batch))"),
        ("log: list[str] = []", "log += [describe(batch)]"),
        ("seen = set()", "seen.update(batch)"),
        ("cache = {}", "cache[step] = describe(batch)"),
        ("cache = collections.defaultdict(list)", "cache[step].append(describe(batch))"),
        ("log = deque()", "log.extend(describe(row) for row in batch)"),
        ("log = [[], []]", "log.append({'step': step, 'text': describe(batch)})"),
    ],
)
def test_what_is_put_into_a_container_made_before_the_loop_is_kept(made: str, statement: str) -> None:
    assert in_loop(made, statement) == [6]


def test_a_modules_forward_is_run_by_each_step_though_nothing_calls_it_by_name() -> None:
    module = "class Net(Module):\n    def __init__(self):\n        self.seen = []\n"
    module += "    def {name}(self, x):\n        self.seen.append(x)\n"
    loop = LOOP.format(made="net = Net()", statement="pass")
    assert found(loop + module.format(name="forward"), 5, "train") == [11]
    assert found(loop + module.format(name="predict"), 5, "train") == []
    assert found("loss.backward()\n" + module.format(name="forward"), 1, "<module>") == []


@pytest.mark.parametrize(
    ("made", "statement"),
    [
        ("log = []", "log.append(loss.item())"),
        ("log = []", "log.append({'loss': loss.item(), 'at': time()})"),
        ("log = deque(maxlen=100)", "log.append(describe(batch))"),
        ("metrics = {}", "metrics['text'] = describe(batch)"),
        ("model = make()", "model.append(describe(batch))"),
        ("weights = torch.zeros(9)", "weights[step] = loss"),
        ("pass", "log = []; log.append(describe(batch))"),
        ("log = []", "log.append(describe(batch)); log = log[-50:]"),
        ("log = []", "log.append(describe(batch)); log.clear()"),
        ("log = {}", "log[step] = describe(batch); del log[step]"),
        ("log = [0]", "log[:] = describe(batch)"),
    ],
)
def test_numbers_and_what_is_emptied_bounded_or_made_anew_is_not_kept(made: str, statement: str) -> None:
    assert in_loop(made, statement) == []


def test_a_number_per_sample_is_more_than_one_per_step() -> None:
    assert in_loop("log = []", "for row in batch: log.append(float(row))") == [6]


@pytest.mark.parametrize("statement", ["self.log.append(describe(batch))", "self.cache[id(batch)] = describe(batch)"])
def test_an_attribute_filled_by_what_the_loop_calls_is_kept(statement: str) -> None:
    assert in_method(statement) == [17]


@pytest.mark.parametrize(
    "statement", ["rows = []; rows.append(describe(batch))", "self.log = []; self.log.append(describe(batch))"]
)
def test_what_each_call_makes_for_itself_is_not_kept(statement: str) -> None:
    assert in_method(statement) == []


def test_an_attribute_that_another_method_empties_is_not_kept() -> None:
    more = "\n    def flush(self):\n        self.log.clear()\n"
    assert in_method("self.log.append(describe(batch))", more) == []


def test_what_is_filled_before_or_after_the_loop_is_not_kept() -> None:
    text = LOOP.format(made="log = []; log.append(describe(loader))", statement="pass")
    assert found(text + "    log.append(describe(model))\n", 5, "train") == []


def test_what_no_step_calls_is_not_kept() -> None:
    more = "\n    def describe_all(self):\n        self.log.append(describe(self))\n"
    assert in_method("pass", more) == []


def test_a_dataclass_that_makes_its_lists_itself_is_a_holder() -> None:
    text = """\
@dataclass
class Log:
    rows: list = field(default_factory=list)

def train(loader, log):
    for batch in loader:
        model(batch).backward()
        log.rows.append(describe(batch))
"""
    assert found(text, 7, "train") == [8]


def test_a_list_of_the_module_that_a_function_fills_is_kept() -> None:
    text = """\
log = []

def step(batch):
    model(batch).backward()
    log.append(describe(batch))

for batch in loader:
    step(batch)
"""
    assert found(text, 4, "step") == [5]


CALLED = """\
class Log:
    def __init__(self):
        self.lines = []

    def __call__(self, entry):
        self.lines.append(describe(entry))


log = Log()
for batch in loader:
    loss = model(batch)
    loss.backward()
    {statement}
"""


def test_an_object_that_is_called_runs_its_own_call() -> None:
    assert found(CALLED.format(statement="log(batch)"), 12, "<module>") == [6]
    assert found(CALLED.format(statement="log.flush()"), 12, "<module>") == [], "it is not called in the step"
