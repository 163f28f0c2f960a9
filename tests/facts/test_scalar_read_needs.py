"""Who needs a number that a line reads before the step can go on."""

import pytest

from efprof.facts.scalar_read_needs import Need, need_for_read
from efprof.facts.sources import Sources


def need(source: str) -> Need | None:
    """Of the line that is marked `# read`."""
    lines = source.splitlines()
    sources = Sources(files={"train.py": lines})
    number = next(number for number, text in enumerate(lines, start=1) if text.endswith("# read"))
    return need_for_read(sources.line(f"train.py:{number}:main"), sources)


def in_a_loop(*lines: str) -> str:
    """The lines in the loop of `main`."""
    return "\n".join(["def main():", "    total = 0.0", "    for x in loader:", *(f"        {line}" for line in lines)])


@pytest.mark.parametrize(
    "lines",
    [
        ("state, reward = env.step(action.item())  # read",),
        ("state = env.step(np.array([action.item()]))  # read",),
        ("state = env.step(actions.cpu().numpy())  # read",),
        ("action = policy(x).item()  # read", "env.render(x)", "state = env.step(int(action))"),
        ("state = env.step(", "    action.item(),  # read", ")"),
        ("action = policy(x)", "action = action.item()  # read", "state, reward = env.step(action)"),
        ("action = policy(x).item()  # read", "for _ in range(4):", "    state, reward = env.step(action)"),
    ],
)
def test_a_call_whose_result_is_used_cannot_go_on_without_the_number(lines: tuple[str, ...]) -> None:
    assert need(in_a_loop(*lines)) == ("call", "env.step")


@pytest.mark.parametrize(
    "lines",
    [
        ("if loss.item() > 3:  # read", "    break"),
        ("while not is_done.item():  # read", "    pass"),
        ("value = loss.item()  # read", "if not math.isfinite(value):", "    raise ValueError"),
        ("assert loss.item() > 0  # read",),
        ("kept = [one for one in x if one.item() > 0]  # read",),
        ("best = x if loss.item() < 3 else best  # read",),
    ],
)
def test_a_branch_cannot_go_on_without_the_number(lines: tuple[str, ...]) -> None:
    assert need(in_a_loop(*lines)) == ("branch", "")


@pytest.mark.parametrize(
    "lines",
    [
        ("total += loss.item()  # read",),
        ("total = total + loss.item()  # read", "if total > 3:", "    break"),
        ("losses.append(loss.item())  # read",),
        ("print(f'{loss.item():.3f}')  # read",),
        ("text = 'loss {}'.format(loss.item())  # read", "print(text)"),
        ("meter.update(float(loss), n=len(x))  # read",),
        ("value = loss.item()  # read", "total += value", "if x.step % 10 == 0:", "    print(value)"),
        ("numbers = {'loss': loss.item()}  # read", "shown = merge(shown, numbers)"),
        ("self.loss = loss.item()  # read",),
        ("perplexity = math.exp(loss.item())  # read", "print(perplexity)"),
        ("print(shorten(loss.item()))  # read",),
        ("shown = dict(loss=loss.item())  # read",),
        ("if total > 3:", "    print(loss.item())  # read"),
    ],
)
def test_what_is_kept_added_up_or_shown_can_wait(lines: tuple[str, ...]) -> None:
    assert need(in_a_loop(*lines)) is None


def test_what_is_done_after_the_loop_or_before_the_read_can_wait() -> None:
    lines = ("if value > 3:", "    pass", "value = loss.item()  # read")
    assert need(in_a_loop(*lines) + "\n    if value > 3:\n        stop()") is None


CHOOSE = """\
def choose(state):
    chosen = policy(state)
    return {result}  # read

def main():
    for state in states:
        {target} = choose(state)
        {use}
"""


def test_what_is_returned_is_followed_to_the_callers() -> None:
    through = {"result": "chosen.item()", "target": "action", "use": "state = env.step(action)"}
    assert need(CHOOSE.format(**through)) == ("call", "env.step")
    assert need(CHOOSE.format(**through | {"use": "print(action)"})) is None


def test_of_a_tuple_that_is_returned_the_number_s_place_is_followed() -> None:
    parts = {"result": "chosen.item(), chosen.log()", "use": "state = env.step(action)"}
    assert need(CHOOSE.format(target="action, log", **parts)) == ("call", "env.step")
    assert need(CHOOSE.format(target="log, action", **parts)) is None


def test_a_function_that_calls_itself_is_followed_once() -> None:
    assert need("def f(x):\n    return f(x) + x.item()  # read") is None


def test_a_file_whose_text_is_not_known_tells_nothing() -> None:
    sources = Sources(files={})
    assert need_for_read(sources.line("train.py:3:main"), sources) is None
