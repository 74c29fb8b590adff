"""A template is compiled once; what was changed or damaged is compiled again."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import Environment, TemplateNotFound

from three_walls.report import compiled_templates
from three_walls.report.compiled_templates import TemplateLoader, write_modules


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A template ``greeting.jinja``, and an empty folder for modules."""
    (tmp_path / "greeting.jinja").write_text("Hello, {{ name }}!")
    monkeypatch.setattr(compiled_templates, "TEMPLATES_DIR", tmp_path)
    monkeypatch.setattr(compiled_templates, "PARSED_DIR", tmp_path / "modules")
    monkeypatch.setattr(compiled_templates, "IS_BUNDLED", False)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    return tmp_path / "modules"


class Compiling(Environment):
    """Refuses to compile, where ``is_allowed`` is false."""

    is_allowed = True

    def compile(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        assert self.is_allowed, "a template was compiled"
        return super().compile(*arguments, **options)  # type: ignore[call-overload]


def greet(*, may_compile: bool = True) -> str:
    environment = Compiling(loader=TemplateLoader(), autoescape=True)
    environment.is_allowed = may_compile
    return environment.get_template("greeting.jinja").render(name="<you>")


def test_a_template_is_compiled_once(kept: Path) -> None:
    assert greet() == greet(may_compile=False) == "Hello, &lt;you&gt;!"
    assert [path.name for path in kept.glob("*.py")] == ["greeting_jinja.py"]


def test_a_changed_template_is_compiled_again(kept: Path) -> None:
    greet()
    (kept.parent / "greeting.jinja").write_text("Bye, {{ name }}!")
    assert greet() == greet(may_compile=False) == "Bye, &lt;you&gt;!"


@pytest.mark.parametrize("content", ["", "not Python", "raise ValueError", "DIGEST = 'of another'"])
def test_a_damaged_module_counts_for_nothing(kept: Path, content: str) -> None:
    kept.mkdir()
    (kept / "greeting_jinja.py").write_text(content)
    assert greet() == "Hello, &lt;you&gt;!"


@pytest.mark.parametrize("setting", ["sys.dont_write_bytecode", "three_walls.report.compiled_templates.IS_BUNDLED"])
def test_nothing_is_kept_where_python_keeps_nothing(kept: Path, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting, True)
    assert greet() == "Hello, &lt;you&gt;!"
    assert not kept.exists()


def test_a_folder_that_cannot_be_written_is_no_error(kept: Path) -> None:
    kept.write_text("a file")
    assert greet() == "Hello, &lt;you&gt;!"


def test_the_modules_of_a_wheel_are_read(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.mkdir()
    write_modules(Environment(loader=TemplateLoader(), autoescape=True), kept)
    monkeypatch.setattr(compiled_templates, "IS_BUNDLED", True)
    assert greet(may_compile=False) == "Hello, &lt;you&gt;!"


@pytest.mark.usefixtures("kept")
def test_a_template_that_is_missing_is_named() -> None:
    with pytest.raises(TemplateNotFound, match="absent"):
        Environment(loader=TemplateLoader()).get_template("absent.jinja")
