// The API key of a server. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns the API key in an environment variable; empty for an empty name. Throws UserError, whose
/// message does not contain the key, if the variable is not set or has characters that a header
/// cannot have.
std::string api_key_in(const std::string& variable);

}  // namespace longspan
