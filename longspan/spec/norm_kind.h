// What an RMSNorm (arXiv 1910.07467) multiplies by, as data. No torch.
#pragma once

namespace longspan {

enum class NormKind {
  kWeight,         ///< its weight, which begins as ones
  kOnePlusWeight,  ///< 1 + its weight, which begins as zeros
};

}  // namespace longspan
