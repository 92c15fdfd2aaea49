// Named means over what many ranks and steps have seen.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"

namespace longspan {

/// Sums with their counts. Names may be missing on some ranks.
class Averages {
 public:
  void add(const std::string& name, double sum, double count) {
    auto& [total, number] = sums_[name];
    total += sum;
    number += count;
  }
  bool empty() const { return sums_.empty(); }
  /// Sum and count by name, of this rank.
  const std::map<std::string, std::pair<double, double>>& sums() const { return sums_; }
  void set(std::map<std::string, std::pair<double, double>> sums) { sums_ = std::move(sums); }
  void clear() { sums_.clear(); }
  /// Means over all ranks of `world`, by name, in the order of `names`; names that nobody has added
  /// to are left out. Collective.
  std::vector<std::pair<std::string, double>> means(const Group& world,
                                                    const std::vector<std::string>& names,
                                                    at::Device device) const;

 private:
  std::map<std::string, std::pair<double, double>> sums_;
};

}  // namespace longspan
