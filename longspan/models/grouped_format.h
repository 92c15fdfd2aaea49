// Formats of folders with matrices in 4 bits, as data. Each format is one constant in its own file.
// No torch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "longspan/models/model_config.h"
#include "longspan/spec/word_order.h"

namespace longspan {

/// A linear layer NAME has the tensors NAME.qweight (codes), NAME.qzeros and NAME.scales. Eight
/// codes, or zeros, are in a word of int32.
struct GroupedFormat {
  /// A value of checkpoint_format, version or format, and the number that is added to stored zeros.
  struct Version {
    std::string_view name;
    int zero_offset = 0;
  };

  const char* method;                 ///< quant_method of quantization_config
  const char* name;                   ///< for messages
  const char* own_file;               ///< in older folders, in place of quantization_config
  std::span<const Version> versions;  ///< the first is the default
  WordOrder order;                    ///< zeros share a word with those of neighbouring rows
  bool has_group_indices;             ///< NAME.g_idx: the number of each column's scale
};

/// Returns the register of all formats (grouped_formats.cpp).
std::span<const GroupedFormat* const> grouped_formats();

/// Returns the storage format by the object quantization_config; nullopt: it names no format of the
/// register. `source`: for messages. Throws UserError for other versions or numbers of bits, and
/// for keys that are not known.
std::optional<StoredNumbers> read_grouped(const nlohmann::json& quantization,
                                          const std::string& source);

/// Returns config.json with quantization_config from the folder's own file of keys, where
/// config.json has no such key; otherwise the text itself.
std::string with_own_quantization(const std::string& folder, std::string text);

}  // namespace longspan
