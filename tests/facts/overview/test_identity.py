from efprof.artifacts.events import TrainingRaised, WindowOpened
from efprof.artifacts.run_file import DIFF_FILE, Git
from efprof.facts.overview.identity import identify
from tests.support.builders import GPU, make_steps, write_run


def test_the_identity_says_what_was_run_where_and_of_a_run_without_steps_too(tmp_path):
    git = Git(root="/home/user/project", branch="main", commit="3f2c1ab", is_dirty=True)
    run = write_run(tmp_path / "run", steps=make_steps(7), git=git, devices=[GPU], configuration={"b": "2", "a": "1"})
    identity = identify(run)
    assert (identity.branch, identity.commit, identity.is_dirty) == ("main", "3f2c1ab", True)
    assert (identity.num_steps, identity.num_ranks, identity.devices) == (7, 1, ("NVIDIA H200",))
    assert identity.configuration == (("a", "1"), ("b", "2"))
    identity = identify(write_run(tmp_path / "second", ended="raised", exit_code=1))
    assert (identity.num_steps, identity.branch, identity.ended, identity.exit_code) == (0, None, "raised", 1)


def test_the_environment_opens_with_uncommitted_changes_versions_devices_and_machine(tmp_path):
    versions = {"torch": "2.13.0", "cuda": "13.0", "python": "3.11.9", "efprof": "0.1.0"}
    settings, variables = {"intra-op threads": "2"}, {"OMP_NUM_THREADS": "2"}
    run = write_run(tmp_path / "run", versions=versions, devices=[GPU], settings=settings, environment=variables)
    names = [name for name, _ in identify(run).environment]
    assert names == [
        "python", "torch", "cuda", "efprof", "device 0", "cpu", "memory", "working folder", "intra-op threads",
        "OMP_NUM_THREADS",
    ]  # fmt: skip
    git = Git(root="/project", commit="3f2c1ab", is_dirty=True, num_untracked=1)
    run = write_run(tmp_path / "second", git=git)
    assert identify(run).environment[0] == ("uncommitted changes", "not kept; new files: 1")
    (run.folder / DIFF_FILE).write_text("")
    assert identify(run).environment[0] == ("uncommitted changes", "in uncommitted.diff; new files: 1")


def test_the_exception_that_ended_a_run_is_part_of_its_identity_and_one_it_survived_is_not(tmp_path):
    raised = TrainingRaised(
        at_ns=0, step=4, error="ValueError", message="boom", stage="forward", sites=["a.py:1:main", "b.py:2:step"]
    )
    identity = identify(
        write_run(tmp_path / "run", steps=make_steps(4), events=[raised], sources={"b.py": "\nx\n"}, ended="raised")
    )
    assert (identity.error.kind, identity.error.message, identity.error.step) == ("ValueError", "boom", 4)
    assert (str(identity.error.blame), identity.error.blame.text) == ("b.py:2", "x")
    assert identity.error.recorder_part == "possible", "an older run does not tell"
    raised = TrainingRaised(at_ns=0, step=4, error="ValueError", message="", stage=None, sites=[])
    assert identify(write_run(tmp_path / "second", steps=make_steps(4), events=[raised])).error is None


def test_the_recorder_may_have_part_in_an_error_apart_from_its_code_where_a_window_was_open_before(tmp_path):
    raised = TrainingRaised(step=4, error="ValueError", message="", stage=None, sites=[], recorder_part="apart")
    opened = WindowOpened(step=2, window="trace-1", why="schedule")
    for events, part in (([raised], "none"), ([opened, raised], "possible")):
        run = write_run(tmp_path / part, steps=make_steps(4), events=events, ended="raised")
        assert identify(run).error.recorder_part == part
