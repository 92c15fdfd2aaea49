// The folders of a converted PiSSA adapter, as LLaMA-Factory writes them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/saving/saving.h"

namespace longspan {

struct MethodSettings;

/// Returns the description of an adapter by the keys pissa_init, pissa_iter and pissa_convert;
/// nullopt without pissa_init. `first_adapter`: the adapter before training.
std::optional<Pissa> pissa_of(const MethodSettings& method,
                              const std::vector<NamedTensor>& first_adapter);

/// Writes into `output_dir`: pissa_init, the adapter before training; pissa_backup, the trained
/// `adapter`, both for the model without the first adapter's part; and pissa_converted, a plain
/// adapter of twice the rank for the whole model: [A; A_0], [B, -B_0]. No-op without a conversion.
void save_converted(const std::string& output_dir, const SavedModel& model,
                    const std::vector<NamedTensor>& adapter);

}  // namespace longspan
