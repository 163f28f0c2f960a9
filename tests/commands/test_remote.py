"""Runs and traces at a URL are reported on and compared; what cannot be read there is one sentence with the URL."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from efprof.artifacts.remote import without_secrets
from efprof.commands.compare import compare
from efprof.commands.report import report
from efprof.model import EfprofError, UnreadableInput
from tests.commands.test_traces import run
from tests.facts.time.traces import slower, step, write
from tests.support.builders import make_steps, write_run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "temporary").symlink_to("real")  # as /var on macOS
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where a bucket begins; S3 is moto's server on this machine."""
    if request.param == "memory":
        yield "memory://bucket"
        fsspec.filesystem("memory").rm("/bucket", recursive=True)
        return
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (("ENDPOINT_URL", f"http://{host}:{port}"), ("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b")):
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    server.stop()


def put(local: Path, url: str) -> str:
    system, path = fsspec.core.url_to_fs(url)
    system.put(str(local), path, recursive=local.is_dir())
    return url


def test_runs_and_traces_at_a_url_are_reported_on_and_compared(store: str, tmp_path: Path) -> None:
    url = put(write(tmp_path / "t.json.gz", *slower(100, *step(0, 0), *step(1000, 1))), f"{store}/resnet.json.gz")
    assert run(report, url).output.endswith(f"reports{os.sep}resnet.html\n")
    assert "Where the time goes" in Path("reports/resnet.html").read_text()
    run_url = put(write_run(tmp_path / "run", steps=make_steps(30)).folder, f"{store}/runs/one")
    assert f'"path": "{run_url}"' in run(report, run_url, "--json").output
    head = put(write_run(tmp_path / "head", steps=make_steps(30, forward_ms=90.0)).folder, f"{store}/runs/two")
    assert "Head is" in run(compare, run_url, head, "--force").output
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(EfprofError, match="are the same run"):
        run(compare, run_url, run_url)
    with pytest.raises(UnreadableInput, match=f"{store}/none.json.gz cannot be read"):
        run(report, f"{store}/none.json.gz")


def test_a_broken_file_is_known_by_its_url_alone_and_among_others(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"traceEvents": [')
    broken = put(tmp_path / "1.json", "memory://bucket/ranks/1.json")
    with pytest.raises(UnreadableInput, match=f"^{broken} is not a whole profiler trace"):
        run(report, broken)
    put(write(tmp_path / "0.json.gz", *step(), rank=0), "memory://bucket/ranks/0.json.gz")
    assert f"{broken} is not a whole profiler trace" in run(report, "memory://bucket/ranks", "--json").output


def test_a_link_opens_and_its_password_and_signature_are_told_nowhere(tmp_path: Path) -> None:
    bucket = "memory://me:s3cret@bucket"
    link = put(write(tmp_path / "t.json.gz", *step()), f"{bucket}/t.json.gz?X=s1gned/1")
    output = run(report, link, "--json").output
    assert '"path": "memory://bucket/t.json.gz"' in output
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(UnreadableInput, match=r"^memory://bucket/t\.json is not a whole") as error:
        run(report, put(tmp_path / "t.json", f"{bucket}/t.json?X=s1gned"))
    assert not any(secret in output + str(error.value) for secret in ("s3cret", "s1gned"))
    told = without_secrets("'https://a:b@h/a?c=d': ftp://me@h/run, abfs://container@account/run")
    assert told == "'https://h/a': ftp://h/run, abfs://container@account/run"


def test_a_name_that_leads_out_of_the_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    system = fsspec.filesystem("memory")
    monkeypatch.setattr(system, "find", lambda path: [f"{path}/../../evil"])
    with pytest.raises(UnreadableInput, match="is no name of a file here"):
        run(report, "memory://bucket/run")


@pytest.mark.parametrize(("url", "missing"), [("gs://a/b", "gcsfs"), ("nothing://a/b", "nothing"), ("s3://a/b", "")])
def test_what_is_missing_is_named(url: str, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    if not missing:
        monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(EfprofError, match=missing or "pip install fsspec"):
        run(report, url)
