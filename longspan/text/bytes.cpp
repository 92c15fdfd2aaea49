#include "longspan/text/bytes.h"

#include <fmt/format.h>

namespace longspan {

std::string name_bytes(int64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (b >= 1024.0 * 1024.0 * 1024.0) return fmt::format("{:.1f} GiB", b / (1024.0 * 1024 * 1024));
  if (b >= 1024.0 * 1024.0) return fmt::format("{:.1f} MiB", b / (1024.0 * 1024));
  return fmt::format("{:.1f} KiB", b / 1024.0);
}

}  // namespace longspan
