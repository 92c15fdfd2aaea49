// The Python program of ServiceLog.
#pragma once

namespace longspan {

/// Reads a JSON object a line from standard input: first the services and the configuration of the
/// run, then {"entry": numbers} for each log entry, last {"end": exit status}. Writes a JSON object
/// a line to standard output: {"missing": service} if a package is not installed, {"failed":
/// service, "error": text}, and once all services have begun {"begun": {service: address}}. Names
/// of runs, metrics and variables of the environment are those of transformers' callbacks.
extern const char* const kServiceScript;

}  // namespace longspan
