"""The names of a project's own functions: none may be that of a function which SQL has already."""

from __future__ import annotations

from catchment.errors import ConfigError
from catchment.functions.project_functions import ProjectFunctions
from catchment.query.sql.dialect import CatchmentSpark
from catchment.query.sql.functions import is_built_in


def check_names(functions: ProjectFunctions) -> ProjectFunctions:
    """Return the functions of a project, none of which has the name of another function."""
    for name, function in functions.by_name.items():
        if is_built_in(name) or name.upper() in {
            **CatchmentSpark.Parser.FUNCTIONS,
            **CatchmentSpark.Parser.FUNCTION_PARSERS,
        }:
            raise ConfigError(
                f"SQL has a function {name!r} already",
                where=function.file,
                hint=f"choose another name, such as my_{name}",
            )
    return functions
