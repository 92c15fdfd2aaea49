// Prints the memory estimate as tables.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "longspan/account/memory_model.h"

namespace longspan {
namespace {

std::string text_of(int64_t bytes) {
  constexpr double kKiB = 1024.0;
  const auto b = static_cast<double>(bytes);
  if (b >= kKiB * kKiB * kKiB * 10) return fmt::format("{:.1f} GiB", b / (kKiB * kKiB * kKiB));
  if (b >= kKiB * kKiB / 10) return fmt::format("{:.1f} MiB", b / (kKiB * kKiB));
  return bytes == 0 ? "-" : fmt::format("{:.1f} KiB", b / kKiB);
}

}  // namespace

std::string table_of(const MemoryAccount& account) {
  std::string table = fmt::format("{:<18} {:>10} {:>10}\n", "Memory of a rank", "device", "host");
  for (const MemoryAccount::Line& line : account.lines) {
    table += fmt::format("{:<18} {:>10} {:>10}  {}\n", line.name, text_of(line.device),
                         text_of(line.host), line.note);
    while (table.size() > 1 && table[table.size() - 2] == ' ') table.erase(table.size() - 2, 1);
  }
  return table + fmt::format("{:<18} {:>10} {:>10}  at the peak of the longest row", "In all",
                             text_of(account.device + account.beside_tensors),
                             text_of(account.host));
}

std::string table_of(const MemoryAccount& account, const std::vector<MeasuredPeak>& by_rank) {
  std::string table = fmt::format("{:<18} {:>10} {:>10} {:>10}\n{:<18} {:>10} {:>10}\n",
                                  "Memory, peaks", "device", "host", "process", "By the account",
                                  text_of(account.device), text_of(account.host));
  constexpr size_t kMostRows = 16;
  const auto line = [&](const std::string& name, const MeasuredPeak& peak) {
    table += fmt::format("{:<18} {:>10} {:>10} {:>10}\n", name, text_of(peak.device),
                         text_of(peak.host), text_of(peak.resident));
  };
  if (by_rank.size() <= kMostRows) {
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      line(fmt::format("Measured, rank {}", rank), by_rank[rank]);
    }
  } else {
    const auto fuller = [](const MeasuredPeak& a, const MeasuredPeak& b) {
      return a.device < b.device;
    };
    const auto [least, most] = std::minmax_element(by_rank.begin(), by_rank.end(), fuller);
    line(fmt::format("Fullest, rank {}", most - by_rank.begin()), *most);
    line(fmt::format("Emptiest, rank {}", least - by_rank.begin()), *least);
  }
  table.pop_back();
  return table;
}

}  // namespace longspan
