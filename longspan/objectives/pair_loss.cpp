#include "longspan/objectives/pair_loss.h"

#include <fmt/format.h>

#include <stdexcept>

namespace longspan {
namespace {

constexpr PairLossKind kKinds[] = {
    {"sigmoid", PairLoss::kSigmoid, /*averages=*/false, /*has_reference=*/true},
    {"hinge", PairLoss::kHinge, /*averages=*/false, /*has_reference=*/true},
    {"ipo", PairLoss::kIpo, /*averages=*/true, /*has_reference=*/true},
    {"kto_pair", PairLoss::kKtoPair, /*averages=*/false, /*has_reference=*/true},
    {"orpo", PairLoss::kOrpo, /*averages=*/true, /*has_reference=*/false},
    {"simpo", PairLoss::kSimpo, /*averages=*/true, /*has_reference=*/false}};

const PairLossKind& kind_of(PairLoss loss) {
  for (const PairLossKind& kind : kKinds) {
    if (kind.loss == loss) return kind;
  }
  throw std::logic_error("a loss of pairs is not in the table");
}

}  // namespace

std::span<const PairLossKind> all_pair_losses() { return kKinds; }

std::vector<std::string_view> names_of_pair_losses() {
  std::vector<std::string_view> names;
  for (const PairLossKind& kind : kKinds) names.push_back(kind.name);
  return names;
}

PairLoss pair_loss_from(std::string_view name) {
  for (const PairLossKind& kind : kKinds) {
    if (kind.name == name) return kind.loss;
  }
  throw std::logic_error(fmt::format("there is no loss of pairs with the name {}", name));
}

bool has_reference(PairLoss loss) { return kind_of(loss).has_reference; }

bool averages(PairLoss loss) { return kind_of(loss).averages; }

}  // namespace longspan
