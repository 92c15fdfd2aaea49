// Numbers of bytes in messages. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace longspan {

/// For example "1.5 GiB".
std::string name_bytes(int64_t bytes);

}  // namespace longspan
