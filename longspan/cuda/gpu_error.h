// Recognizes errors of a GPU. No torch.
#pragma once

#include <string_view>

namespace longspan {

/// Whether a message of torch reports an error of the GPU. The last started kernel or an earlier
/// kernel may have caused the error. Every later wait for the GPU reports the same error.
inline bool is_error_of_gpu(std::string_view text) {
  return text.find("CUDA error") != std::string_view::npos;
}

}  // namespace longspan
