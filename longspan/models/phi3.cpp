// Phi-4 (arXiv 2412.08905) and Phi-3 with plain rotation: Llama whose files have one tensor for the
// queries', keys' and values' projections, and one for gate and up.
#include <fmt/format.h>

#include "longspan/models/family.h"

namespace longspan {
namespace {

void read_own_keys(const JsonObject& keys, ModelConfig& config) {
  config.qkv_stored_as_one = config.gate_up_stored_as_one = true;
  if (!keys.json().contains("pad_token_id")) {  // transformers' default
    constexpr int64_t kDefaultPadding = 32000;
    if (kDefaultPadding >= config.vocab_size) {
      keys.fail(
          fmt::format("pad_token_id is missing, and that of this family, {}, is outside of "
                      "the vocabulary of {}. Set it to the padding token, or to null",
                      kDefaultPadding, config.vocab_size));
    }
    config.padding_token = kDefaultPadding;
  }
  for (const char* dropout : {"resid_pdrop", "embd_pdrop"}) {
    if (keys.get<double>(dropout, 0.0) != 0.0) {
      keys.fail(fmt::format("{} other than 0 is not supported", dropout));
    }
  }
  config.window = keys.optional<int64_t>("sliding_window");
  if (config.window && *config.window <= 0) {
    keys.fail(fmt::format("sliding_window is {}, it must be positive, or null for full attention",
                          *config.window));
  }
}

}  // namespace

extern const Family kPhi3{"phi3", "Phi-4", "Phi3ForCausalLM", false,
                          1e-5,   4096,    read_own_keys,     1.0};

}  // namespace longspan
