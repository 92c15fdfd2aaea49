#include "longspan/registers/pair_loss.h"

#include <fmt/format.h>

#include <stdexcept>

namespace longspan {

std::vector<std::string_view> names_of_pair_losses() {
  std::vector<std::string_view> names;
  for (const PairLossKind& kind : kPairLosses) names.push_back(kind.name);
  return names;
}

PairLoss pair_loss_from(std::string_view name) {
  for (const PairLossKind& kind : kPairLosses) {
    if (kind.name == name) return kind.loss;
  }
  throw std::logic_error(fmt::format("there is no loss of pairs with the name {}", name));
}

const PairLossKind& kind_of(PairLoss loss) {
  for (const PairLossKind& kind : kPairLosses) {
    if (kind.loss == loss) return kind;
  }
  throw std::logic_error("a loss of pairs is not in the table");
}

bool has_reference(PairLoss loss) { return kind_of(loss).has_reference; }

bool averages(PairLoss loss) { return kind_of(loss).averages; }

}  // namespace longspan
