// The factor by which an RMSNorm (arXiv 1910.07467) multiplies, as data. No torch.
#pragma once

namespace longspan {

enum class NormKind {
  kWeight,         ///< the weight, initialized to ones
  kOnePlusWeight,  ///< 1 + the weight, initialized to zeros
};

}  // namespace longspan
