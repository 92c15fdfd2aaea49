// Reader of the file through which ranks get examples while later examples are encoded.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/data/early_file.h"
#include "longspan/input/input_file.h"
#include "tests/fuzz/fuzz.h"

namespace longspan {
namespace {

using fuzz::Folder;

constexpr size_t kNumRecords = 3;

/// Returns the bytes of a file with these records, of which the last one is written first.
std::string file_of_records(const Folder& folder, const std::vector<std::string>& records) {
  EarlyFileWriter writer(folder.path(), std::ssize(records));
  for (int64_t i = std::ssize(records) - 1; i >= 0; --i) writer.write(i, records[i]);
  return writer.open().read_all(kMaxSettingsBytes);
}

/// Returns the file with damage: bytes that replace its bytes at a place, which the first two bytes
/// of `damage` give. Without further bytes, the file ends at that place.
std::string damaged(std::string file, std::string_view damage) {
  if (damage.size() < 2) return file;
  const size_t place = (static_cast<unsigned char>(damage[0]) +
                        size_t{256} * static_cast<unsigned char>(damage[1])) %
                       (file.size() + 1);
  damage.remove_prefix(2);
  if (damage.empty()) return file.substr(0, place);
  file.resize(std::max(file.size(), place + damage.size()));
  return file.replace(place, damage.size(), damage);
}

/// Three records, then the damage. A record is read as it was written, or it is refused.
FUZZ_READER(early_files) {
  std::vector<std::string> records = fuzz::pieces(input, kNumRecords + 1);
  const std::string damage = records.back();
  records.pop_back();
  const Folder folder;
  const std::string whole = file_of_records(folder, records), read = damaged(whole, damage);
  const EarlyFile file(InputFile(folder.write("rows", read), "encoded data set"));
  for (size_t i = 0; i < kNumRecords; ++i) {
    try {
      fuzz::require(file.record(static_cast<int64_t>(i)) == records[i],
                    "a record is as it was written");
    } catch (const UserError&) {
      fuzz::require(read != whole, "a whole file is read");
    }
  }
}

}  // namespace
}  // namespace longspan
