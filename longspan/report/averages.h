// Named means over what many ranks and steps have seen.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/transfer.h"

namespace longspan {

/// Sums with their counts. Names may be missing on some ranks.
class Averages {
 public:
  void add(const std::string& name, double sum, double count) {
    auto& [total, number] = sums_[name];
    total += sum;
    number += count;
  }
  /// The same with sums that a device still computes, numbers of any dtype: the host waits for them
  /// once it is asked for means or sums.
  void add(const std::vector<std::pair<std::string, at::Tensor>>& sums, double count);
  bool empty() const { return sums_.empty() && arriving_.empty(); }
  /// Sum and count by name, of this rank.
  const std::map<std::string, std::pair<double, double>>& sums();
  void set(std::map<std::string, std::pair<double, double>> sums) {
    clear();
    sums_ = std::move(sums);
  }
  void clear() {
    sums_.clear();
    arriving_.clear();
  }
  /// Means over all ranks of `world`, by name, in the order of `names`; names that nobody has added
  /// to are left out. Collective.
  std::vector<std::pair<std::string, double>> means(const Group& world,
                                                    const std::vector<std::string>& names,
                                                    at::Device device);

 private:
  struct Arriving {
    std::vector<std::string> names;
    ToHost sums;
    double count;
  };
  /// In the order in which they were added, so that sums round as without a device.
  void take_arriving();

  std::map<std::string, std::pair<double, double>> sums_;
  std::vector<Arriving> arriving_;
};

}  // namespace longspan
