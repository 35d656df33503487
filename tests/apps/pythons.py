"""Python's servers and clients, and CPython's own tests."""

import pathlib
import xml.etree.ElementTree

from harness import Failed, app

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"

SUITES = ["test_asyncore", "test_epoll", "test_ftplib", "test_httplib",
          "test_httpservers", "test_poll", "test_select", "test_selectors",
          "test_smtplib", "test_socket", "test_socketserver", "test_telnetlib",
          "test_xmlrpc", "test_urllib2_localnet"]


def part(run, name):
    return {name: run.call(PYTHON, HERE / "python_work.py", name, run.address,
                           run.port(), limit=120)}


@app("python-http", "python3")
def python_http(run):
    """http.server with threads, and a client like requests'."""
    return part(run, "http"), "done"


@app("python-asyncio", "python3")
def python_asyncio(run):
    """30 asyncio clients."""
    return part(run, "asyncio"), "done"


@app("python-multiprocessing", "python3")
def python_multiprocessing(run):
    """Connections and managers over TCP."""
    return part(run, "multiprocessing"), "done"


@app("python-suites", "python3", share=0.5, rdma=False,
     why="each of 10 MB is a service's first connection: much has gone "
         "before its lane is there")
def python_suites(run):
    """CPython's own tests (socket without VSOCK, socketserver, select,
    selectors, epoll, http, ftp, smtp, ...): none that passes plain may fail."""
    names = {}
    for suite in SUITES:
        report = run.directory / f"{suite}.xml"
        run.call(PYTHON, "-m", "test", "-i", "*VSOCK*", "--junit-xml", report,
                 suite, limit=300, statuses=range(256))
        if not report.exists():
            raise Failed(f"{suite} (libpython3.11-testsuite) left no report")
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            if case.get("status") == "run" and not (
                    case.findall("error") or case.findall("failure")):
                names[f"{suite}.{case.get('name')}"] = (
                    "skipped" if case.findall("skipped") else "passed")
    passed = sorted(n for n, what in names.items() if what == "passed")
    if len(passed) < 500:
        raise Failed(f"only {len(passed)} tests passed")
    return {"passed": passed}, f"{len(passed)} tests passed"
