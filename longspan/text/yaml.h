// Converts YAML to JSON text. No torch. (Backed by the `serde-saphyr` crate, see rust/.)
//
// Scalars: 1.0e-5, 1e-5 and 5.0e-5 are numbers; true, false, yes, no, on, off, y, n in any case are
// booleans (quote "no" for the word); null, ~ and an empty value are null; integers are exact; .inf
// and .nan, which JSON lacks, stay strings; dates are strings. An empty file is null. A duplicate
// key is an error. Keys are strings, as written in the file.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Throws UserError with file name, line and column for broken YAML. `file_name`: only for
/// messages.
std::string yaml_to_json(std::string_view yaml, const std::string& file_name);

}  // namespace longspan
