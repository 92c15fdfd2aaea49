#include "longspan/registers/rollout_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace longspan {

std::vector<std::string_view> names_of_server_kinds() {
  std::vector<std::string_view> names;
  for (const ServerKind& kind : kServerKinds) names.push_back(kind.name);
  return names;
}

const ServerKind& server_kind_named(std::string_view name) {
  const auto found = std::ranges::find(kServerKinds, name, &ServerKind::name);
  if (found != std::end(kServerKinds)) return *found;
  throw std::logic_error(fmt::format("there is no kind of server with the name {}", name));
}

std::vector<std::string_view> names_of_update_ways() {
  return {std::begin(kUpdateWayNames), std::end(kUpdateWayNames)};
}

UpdateWay update_way_named(std::string_view name) {
  const auto found = std::ranges::find(kUpdateWayNames, name);
  if (found != std::end(kUpdateWayNames)) {
    return static_cast<UpdateWay>(found - std::begin(kUpdateWayNames));
  }
  throw std::logic_error(fmt::format("there is no way to update a server with the name {}", name));
}

}  // namespace longspan
