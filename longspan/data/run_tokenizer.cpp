#include "longspan/data/run_tokenizer.h"

#include <fmt/format.h>

#include <optional>

#include "longspan/base/names.h"
#include "longspan/base/user_error.h"
#include "longspan/settings/data_settings.h"

namespace longspan {

AddedTokens added_tokens(const DataSettings& config) {
  return {split_names(config.add_tokens), split_names(config.add_special_tokens)};
}

Tokenizer run_tokenizer(const std::string& folder, const DataSettings& config) {
  return Tokenizer::load(folder, added_tokens(config));
}

void require_rows(const Tokenizer& tokenizer, const AddedTokens& added, int64_t num_rows,
                  const std::string& model, const std::string& remedy) {
  for (const std::vector<std::string>* tokens : {&added.plain, &added.special}) {
    for (const std::string& token : *tokens) {
      const std::optional<int32_t> id = tokenizer.id_of(token);
      if (!id || *id < num_rows) continue;
      throw UserError(
          fmt::format("{}: {} becomes token {}, and the embedding of {} has {} rows. {}",
                      tokens == &added.plain ? "add_tokens" : "add_special_tokens", token, *id,
                      model, num_rows, remedy));
    }
  }
}

}  // namespace longspan
