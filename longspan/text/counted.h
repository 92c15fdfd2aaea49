// Counts before nouns. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// "1 row", "24 rows", "1,234 rows"; "1 process", "2 processes"; "1 query", "2 queries".
std::string counted(int64_t number, std::string_view noun);

/// The noun alone, in its form after `number`.
std::string noun_of(int64_t number, std::string_view noun);

}  // namespace longspan
