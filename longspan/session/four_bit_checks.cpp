#include "longspan/session/four_bit_checks.h"

#include <fmt/format.h>

#include <string>

#include "longspan/base/user_error.h"
#include "longspan/config/check_quantization.h"
#include "longspan/config/config.h"
#include "longspan/models/grouped_format.h"
#include "longspan/models/model_config.h"

namespace longspan {

void require_four_bits(const Config& config, const ModelConfig& model) {
  const bool of_folder = model.stored.four_bits() != nullptr;
  if (!of_folder && !config.model.quantization_bit) return;
  const std::string given =
      of_folder ? fmt::format("{} in 4 bits ({})", config.model.model_name_or_path,
                              model.stored.grouped->name)
                : fmt::format("quantization_bit: {}", *config.model.quantization_bit);
  const int64_t bits = config.model.quantization_bit.value_or(4);
  const auto refuse = [&](const std::string& reason) {
    throw UserError(fmt::format("{}, but {} {}.", given, reason,
                                of_folder
                                    ? "Use the original model, with quantization_bit: 4 or without"
                                    : "Remove the key"));
  };
  if (experts_of(model.spec) != nullptr) {
    refuse(fmt::format("the model has experts, which are not held in {} bits here.", bits));
  }
  if (model.spec.vision) {
    refuse(fmt::format(
        "the run trains on pictures, and a vision tower is not held in {} bits here.", bits));
  }
  if (!of_folder) return;
  if (config.model.quantization_bit) {
    throw UserError(
        fmt::format("quantization_bit: {}, but {} is quantized already ({}). Remove the "
                    "key.",
                    *config.model.quantization_bit, config.model.model_name_or_path,
                    model.stored.grouped->name));
  }
  check_packed_weights(config, given, [](bool holds, std::string_view problem) {
    if (!holds) throw UserError(fmt::format("{}.", problem));
  });
}

}  // namespace longspan
