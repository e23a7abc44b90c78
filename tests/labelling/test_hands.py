"""Mixed hands on the page: mouse, keyboard and touch in all orders, and never a label that nobody gave."""

import json
from itertools import pairwise

import pytest

from benchmarks._label_page import Keys

from .conftest import label_page

CLASSES = ["ant", "bee", "cow"]
# A hand that has answered and does not stop: it acts as soon as the next sample is there, and then on every frame until
# the page says that it counts.
SHAKE = """
const [what, key, selector, done] = arguments, stage = document.querySelector(".stage"), first = stage.dataset.ready;
const id = () => document.querySelector("figure.sample").dataset.id, before = id();
const act = (detail) => {
  if (key) document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  else document.querySelector(selector).dispatchEvent(new MouseEvent("click", { detail, bubbles: true }));
};
const counts = () => (stage.dataset.ready ?? "").split(" ").includes(what);
let n = 0;
const again = () => {
  if (id() !== before && counts()) return;
  act(2);
  n += id() !== before;
};
const seen = new MutationObserver(again);
seen.observe(stage, { childList: true });
act(1);
const frame = () => {
  if (id() !== before && counts()) return seen.disconnect(), done(n);
  again();
  requestAnimationFrame(frame);
};
frame();
"""
# Answers are asked for and do not come, until they are let go.
HOLD = """
window.real ??= window.fetch;
window.held = [];
window.fetch = (...given) => /api.(answer|undo)/.test(given[0])
  ? new Promise((go) => window.held.push(() => go(window.real(...given)))) : window.real(...given);
"""
LET_GO = "window.fetch = window.real; const n = window.held.length; for (const go of window.held) go(); return n"
FOCUS = "const at = document.activeElement; return at.closest('.sample') ? 'sample' : at.className"


@pytest.fixture(scope="module")
def texts(page, tmp_path_factory):
    """A project of texts, which all hands work on: its folder, and the address of its page."""
    folder = tmp_path_factory.mktemp("texts")
    with label_page([f"text number {i}" for i in range(300)], CLASSES, folder, query_size=1000) as client:
        yield folder, client.address.geturl()


@pytest.fixture
def hands(page, texts):
    """The page in a new tab, as it were, and the hands on it."""
    folder, address = texts
    new = {"source": "sessionStorage.clear()"}  # what an earlier tab has done is not for this one to undo
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", new)
    page.open(address)
    page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    yield Hands(page, folder)
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


class Hands:
    """Does things to a page, and notes what they should come to."""

    def __init__(self, page, folder):
        self.page, self.folder = page, folder
        self.given = []  # (id, label), or (id, None) for "cannot say", as they should hold
        self.n_events = self.n_before = 0
        self.n_before = len(self.events())

    def events(self):
        """What the journal has of these hands."""
        path = self.folder / "labels.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines[self.n_before :]]

    def settle(self, expected):
        """Wait until the page shows another sample than the expected one, and nothing is under way."""
        self.page.wait_for(lambda: len(self.events()) == self.n_events and self.page.current() != expected)

    def give(self, label, act):
        """Something that gives a label to the sample on the screen, or says that nobody can."""
        shown = self.page.current()
        act()
        self.given.append((shown, label))
        self.n_events += 1
        self.settle(shown)

    def take_back(self, act):
        act()
        if self.given:
            key, _ = self.given.pop()
            self.n_events += 1
            self.page.wait_for(lambda: self.page.current() == key)

    def press(self, key):
        """Space or Enter, which mean what has the focus; never a class."""
        at = self.page.run("return document.activeElement.textContent")
        if self.page.run(FOCUS) == "class":
            self.page.press(key)
        elif "Undo" in at and self.page.run(FOCUS) != "":
            self.take_back(lambda: self.page.press(key))
        elif key == " " or ("Cannot say" in at and self.page.run(FOCUS) != ""):
            self.give(None, lambda: self.page.press(key))
        else:
            self.page.press(key)

    def tap(self, selector):
        self.page.ready("click")
        where = "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
        x, y = self.page.run(f"{where} return [r.x + r.width / 2, r.y + r.height / 2]", selector)
        for kind, points in [("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])]:
            self.page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def hold(self, key, times):
        self.page.ready("press")
        event = {"key": key, "code": f"Digit{key}", "text": key, "windowsVirtualKeyCode": ord(key)}
        for repeat in range(times):
            down = event | {"type": "keyDown", "autoRepeat": repeat > 0}
            self.page.driver.execute_cdp_cmd("Input.dispatchKeyEvent", down)
        self.page.driver.execute_cdp_cmd("Input.dispatchKeyEvent", event | {"type": "keyUp", "text": ""})

    def before_the_answer(self, act):
        """Do something while nothing comes back from the server, however long it takes; one request is under way."""
        shown = self.page.current()
        self.page.run(HOLD)
        act()
        assert (self.page.current(), len(self.events())) == (shown, self.n_events)
        assert self.page.run(LET_GO) == 1

    def check(self):
        """The journal holds what was given, nothing else, and in no more steps."""
        events = self.events()
        assert len(events) == self.n_events
        holds = {}
        for event in events:
            holds.pop(event["id"], None)
            if event["event"] != "open":
                holds[event["id"]] = event["label"]
        assert holds == dict(self.given)
        assert self.page.complaints() == []


def all_pairs(names):
    """A cycle in which every name follows every name, once (of de Bruijn)."""
    left = {name: list(names) for name in names}
    path, circuit = [names[0]], []
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            circuit.append(path.pop())
    return circuit


def test_all_pairs_are_all_pairs():
    walk = all_pairs("abc")
    assert len(walk) == 10
    assert len(set(pairwise(walk))) == 9


def test_mixed_hands_in_all_orders(hands):
    page = hands.page
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    pointer = {
        "click": lambda: hands.give("ant", lambda: page.click(".class[data-class=ant]")),
        "tap": lambda: hands.give("cow", lambda: hands.tap(".class[data-class=cow]")),
        "click undo": lambda: hands.take_back(lambda: page.click(".actions button")),
    }
    actions = pointer | {
        "key": lambda: hands.give("bee", lambda: page.press("2")),
        "undo": lambda: hands.take_back(lambda: page.press(Keys.BACKSPACE)),
        "space": lambda: hands.press(" "),
        "Enter": lambda: hands.press(Keys.ENTER),
        "Tab": lambda: page.press(Keys.TAB),
    }
    for name in all_pairs(list(actions)):
        actions[name]()
        if name in pointer:
            assert page.run(FOCUS) == "sample", name
    hands.check()


def test_no_key_but_its_own_gives_a_class(hands):
    """Not even on the class's own button, however the focus came there."""
    page = hands.page
    for _ in range(20):
        page.press(Keys.TAB)
        if page.run(FOCUS) == "class":
            break
    assert page.run("return document.activeElement.dataset.class") == "ant"
    page.press(" ", Keys.ENTER)
    assert "To give this class, press 1" in page.text(".class-panel")
    hands.give("cow", lambda: page.press("3"))
    page.press(" ", Keys.ENTER)
    button = "document.querySelector('.class[data-class=bee]')"
    page.run(f"{button}.focus()")
    page.press(" ", Keys.ENTER)
    hands.give("ant", lambda: page.press("1"))
    hands.check()


def test_every_pointer_action_returns_the_focus_to_the_sample(hands):
    page = hands.page
    hands.give(None, lambda: page.click(".actions button", 1))
    for selector in ["[data-option=suggestions]", "[data-option=suggestions]", ".name", ".numbers"]:
        page.click(selector)
        assert page.run(FOCUS) == "sample", selector
    page.click(".tab[data-view=gallery]")
    page.click(".tab[data-view=label]")
    assert page.run(FOCUS) == "sample"
    page.click(".top button[aria-keyshortcuts]")  # the help
    page.click("dialog.help button")
    page.wait_for(lambda: page.run(FOCUS) == "sample")
    page.click(".new-class")
    page.press("dog")
    page.click(".add-class button")
    page.wait_for(lambda: page.find(".class[data-class=dog]"))
    assert page.run(FOCUS) == "sample"
    hands.n_events += 1  # the class
    hands.give("dog", lambda: page.press("4"))
    hands.give(None, lambda: page.press(" "))
    page.click("[data-option=grid]")
    page.wait_for(lambda: len(page.find(".cell")) == 12)
    assert page.run(FOCUS) == "sample"
    chosen = page.find(".cell")[4].get_attribute("data-id")
    page.click(".cell", 4)
    page.press(" ")
    page.wait_for(lambda: page.find(".cell")[4].text.endswith("cannot say"))
    hands.given.append((chosen, None))
    hands.n_events += 1
    page.click("[data-option=grid]")
    page.wait_for(page.current)
    events = [event for event in hands.events() if event["event"] != "class"]
    assert {event["id"]: event["label"] for event in events} == dict(hands.given)


def test_a_key_held_down_gives_one_label(hands):
    hands.give("bee", lambda: hands.hold("2", 12))
    hands.give("cow", lambda: hands.page.press("3"))
    hands.check()


def test_a_label_belongs_to_the_sample_that_was_on_the_screen(hands):
    """Double presses, and presses while an answer is on its way, are for no sample at all."""
    page = hands.page

    def late(act):
        return lambda: hands.before_the_answer(act)

    hands.give("ant", late(lambda: page.press("1", "1", "2", " ", Keys.BACKSPACE)))
    hands.give("cow", late(lambda: [page.click(".class[data-class=cow]"), page.click(".class[data-class=bee]")]))
    hands.take_back(late(lambda: page.press(Keys.BACKSPACE, Keys.BACKSPACE, "1")))
    hands.give("bee", late(lambda: hands.hold("2", 5)))
    hands.give("ant", lambda: page.press("1"))
    hands.check()


@pytest.mark.parametrize(
    ("what", "key", "selector", "label"),
    [
        ("press", "2", None, "bee"),
        ("press", " ", None, None),
        ("click", None, ".class[data-class=cow]", "cow"),
        ("click", None, ".actions button:nth-child(2)", None),
    ],
)
def test_a_hand_that_goes_on_labels_no_sample_that_nobody_has_seen(hands, what, key, selector, label):
    """Without any latency: the next sample is there at once, and second presses and clicks are not for it."""
    page = hands.page
    for _ in range(2):
        page.ready(what)
        done = []
        hands.give(label, lambda done=done: done.append(page.driver.execute_async_script(SHAKE, what, key, selector)))
        assert done[0] >= 1  # times it acted on the next sample, in vain
    hands.give("ant", lambda: page.press("1"))  # which counts from then on
    hands.check()


def test_the_same_button_may_be_clicked_for_one_sample_after_the_other(hands):
    """The browser calls this a double click, too; it counts once the sample was in sight."""
    second = ".class[data-class=cow]"
    click = "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', { detail: 2, bubbles: true }))"
    for _ in range(3):
        hands.page.ready("click")
        hands.give("cow", lambda: hands.page.run(click, second))
    hands.check()


def test_second_clicks_count_in_the_grid_and_for_several_classes(page, tmp_path):
    """There a click answers nothing by itself, or what can be seen."""
    texts = [f"text number {i}" for i in range(40)]
    click = "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', { detail: 2, bubbles: true }))"
    with label_page(texts, CLASSES, tmp_path / "grid", query_size=1000) as client:
        page.open(client.address.geturl())
        page.click("[data-option=grid]")
        page.wait_for(lambda: len(page.find(".cell")) == 12)
        page.ready("press")
        page.run(click, ".class[data-class=bee]")
        page.wait_for(lambda: page.find(".cell")[0].text.endswith("bee"))
        page.run(click, ".class[data-class=cow]")
        page.wait_for(lambda: page.find(".cell")[1].text.endswith("cow"))
    page.run("sessionStorage.clear()")
