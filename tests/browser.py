"""A real browser, headless Chromium, that tests drive by choreographer over the DevTools protocol."""

import asyncio
import contextlib
import shutil
import threading
import time

import pytest

# What choreographer switches off, and what would ask servers elsewhere.
UNSAFE = ("--disable-web-security", "--allow-file-access-from-files")
QUIET = ("--disable-background-networking", "--no-pings", "--mute-audio")


class Tab:
    """A page in the browser. Its methods wait until they are done."""

    def __init__(self, loop, tab):
        self._loop, self._tab = loop, tab
        self.requests, self.errors = [], []

    def send(self, command, **params):
        """What the browser answers to a command of the DevTools protocol."""
        sent = asyncio.run_coroutine_threadsafe(self._tab.send_command(command, params), self._loop)
        answer = sent.result(timeout=30)
        assert "error" not in answer, answer
        return answer["result"]

    def listen(self):
        async def asked(event):
            self.requests.append(event["params"]["request"]["url"])

        async def raised(event):
            self.errors.append(event["params"]["exceptionDetails"])

        async def logged(event):
            # The policy of a page is enforced by refusing, which is told here.
            self.errors.append(event["params"]["entry"]["text"])

        self._tab.subscribe("Network.requestWillBeSent", asked)
        self._tab.subscribe("Runtime.exceptionThrown", raised)
        self._tab.subscribe("Log.entryAdded", logged)
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.send(f"{domain}.enable")

    def open(self, address):
        """Go to an address, and wait until it is loaded."""
        self.send("Page.navigate", url=address)
        self.wait_for(f"document.readyState === 'complete' && location.href.startsWith({address.split('#')[0]!r})")

    def evaluate(self, script):
        """The value of an expression, as JSON has it; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script, timeout=20):
        """Wait until an expression is true or anything that is there, such as an element; return its value."""
        deadline = time.monotonic() + timeout
        while (value := self.evaluate(script)) in (None, False, 0, ""):
            assert time.monotonic() < deadline, f"not within {timeout} s: {script}"
            time.sleep(0.05)
        return value

    def theme(self, name):
        """Be a system whose theme is light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def size(self, width, height=900, mobile=False):
        """Be a screen of this size."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def phone(self):
        """Be a phone."""
        self.size(390, 844, mobile=True)

    def mouse(self, kind, x, y):
        """Move, press or release the mouse: mouseMoved, mousePressed, mouseReleased."""
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def click(self, x, y):
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def drag(self, start, end):
        """Press the mouse at one place and release it at another."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start)
        for part in (0.25, 0.5, 0.75, 1):
            x, y = (a + part * (b - a) for a, b in zip(start, end, strict=True))
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.mouse("mouseReleased", *end)

    def key(self, key, code=None, text=""):
        """Press a key, such as Tab, Enter or ArrowLeft, and release it."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        about = {"key": key, "code": code or key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = text or {"Enter": "\r", " ": " "}.get(key, "")
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **about)
        self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    def place_of(self, selector):
        """The middle of an element on the screen, to which the page is scrolled."""
        return self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2, b.width, b.height]})()"
        )


class Browser:
    """A browser that is running; `tab` opens a page in it."""

    def __init__(self, loop, browser):
        self._loop, self._browser = loop, browser

    def tab(self, address="about:blank"):
        opened = asyncio.run_coroutine_threadsafe(self._browser.create_tab(), self._loop).result(timeout=30)
        tab = Tab(self._loop, opened)
        tab.listen()
        tab.size(1200)
        if address != "about:blank":
            tab.open(address)
        return tab


@contextlib.contextmanager
def chromium():
    """Yield a browser; without one on this machine, the test is skipped."""
    choreographer = pytest.importorskip("choreographer")
    from choreographer.browsers.chromium import Chromium

    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine")

    class Safe(Chromium):
        """As people have it: the rules of the web hold."""

        def get_cli(self):
            return [*(word for word in super().get_cli() if word not in UNSAFE), *QUIET]

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait(made):
        return asyncio.run_coroutine_threadsafe(made, loop).result(timeout=60)

    async def start():
        started = choreographer.Browser(path, browser_cls=Safe)
        await started.open()
        return started

    browser = wait(start())
    try:
        yield Browser(loop, browser)
    finally:
        wait(browser.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
