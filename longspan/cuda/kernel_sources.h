// The CUDA C++ of the kernels over rows (cuda/rows/*.cu), which the build puts into the program as
// text. No torch.
#pragma once

#include <string>

namespace longspan::cuda {

/// Kernels that are compiled together, when the first of them is used.
enum class Part {
  kNorm,
  kNormBackward,
  kRotary,
  kNormRotary,
  kGated,
  kCrossEntropy,
  kDropOut,
  kGroupedGemm,
  kGroupedRows
};
inline constexpr Part kParts[] = {Part::kNorm,       Part::kNormBackward, Part::kRotary,
                                  Part::kNormRotary, Part::kGated,        Part::kCrossEntropy,
                                  Part::kDropOut,    Part::kGroupedGemm,  Part::kGroupedRows};

/// The least compute capability, as 80 for 8.0, of GPUs that have the instructions of the part.
int least_capability_of(Part part);
/// The part's file, for messages.
const char* name_of(Part part);
/// The whole text that NVRTC gets.
std::string source_of(Part part);

}  // namespace longspan::cuda
