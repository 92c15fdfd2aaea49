// Errors that a GPU reports by itself. No torch.
#pragma once

#include <string_view>

namespace longspan {

/// Does this text of torch's tell of an error of the GPU: of the kernel that was started, or of any
/// before it? Whoever waits for the GPU meets it from then on.
inline bool is_error_of_gpu(std::string_view text) {
  return text.find("CUDA error") != std::string_view::npos;
}

}  // namespace longspan
