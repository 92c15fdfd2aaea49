#include "longspan/config/check_quantization.h"

#include <fmt/format.h>

#include <optional>

#include "longspan/base/names.h"
#include "longspan/config/config.h"
#include "longspan/settings/choices.h"

namespace longspan {

void check_quantization(const Config& config,
                        const std::function<void(bool holds, std::string_view problem)>& demand) {
  const ModelSettings &model = config.model, defaults;
  const std::optional<int64_t> bits = model.quantization_bit;
  demand(!bits || bits == 4 || bits == 8,
         fmt::format("quantization_bit: {} is known but not supported; 4 and 8 are",
                     bits.value_or(4)));
  demand(bits == 4 || (model.quantization_type == defaults.quantization_type &&
                       model.double_quantization == defaults.double_quantization),
         "quantization_type and double_quantization are for quantization_bit: 4; remove them, or "
         "set it");
  demand(
      !bits || !config.method.resize_vocab,
      "resize_vocab adds rows to the embedding, which is not for quantization_bit; remove one of "
      "them");
  demand(bits != 8 || !config.method.use_dora,
         "use_dora is not for quantization_bit: 8, whose products also round inputs; remove "
         "use_dora, or set quantization_bit: 4");
  if (bits) check_packed_weights(config, fmt::format("quantization_bit: {}", *bits), demand);
}

void check_packed_weights(const Config& config, std::string_view weights,
                          const std::function<void(bool holds, std::string_view problem)>& demand) {
  demand(
      trains_adapter(config.method),
      fmt::format("{} is for finetuning_type: lora, because quantized weights cannot be trained; "
                  "set that, or take weights that are not quantized",
                  weights));
  demand(
      split_names(config.model.adapter_name_or_path).size() < 2,
      fmt::format("{} takes one adapter in adapter_name_or_path, because adapters are not merged "
                  "into quantized weights; merge the others with `longspan export` first",
                  weights));
  demand(!config.method.pissa_init,
         fmt::format("pissa_init takes a part out of the matrices, which {} has rounded; remove "
                     "pissa_init, or take weights that are not quantized",
                     weights));
  demand(
      !config.memory.offload_params,
      fmt::format("offload_params is not for {}, whose weights stay on the device; remove one of "
                  "them",
                  weights));
}

}  // namespace longspan
