// Names of the files that the program writes into a folder of a model, an adapter or a checkpoint.
// Any other file belongs to someone else. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Tokenizer, chat template and generation settings, which are copied from the base model.
const std::vector<std::string>& tokenizer_file_names();

/// Files of an adapter.
const std::vector<std::string>& adapter_file_names();
/// Configuration and weights of a model, an adapter and a value head, without numbered weight
/// files.
const std::vector<std::string>& model_file_names();

/// Whether the program writes a file of this path in such a folder, or has left it half-written, in
/// this version or an older one (left_temporary.h).
bool is_written_name(const std::string& name);

/// Whether it is a name like ".nfs0123456789abcdef00000001", to which a network disk renames a
/// removed file that a process still holds open. The file goes when it is closed.
bool is_held_name(const std::string& file_name);

/// Whether the folder holds any file, at any depth, except removed files that are still open. True
/// where it cannot be read.
bool holds_files(const std::string& folder);

/// Whether the name is a plain path below a folder: relative, without "..", "." or empty parts.
bool is_name_below(const std::string& name);

/// Returns the path of an entry in the folder that the program has not written: any file, link,
/// pipe or folder that has no such name and is not in the folder's own table of checksums. Removed
/// files that are still open (is_held_name) do not count. Returns "itself" where `folder` is a link
/// or a file or cannot be read, and "" where everything is the program's own or the folder is
/// missing.
std::string foreign_entry(const std::string& folder);

/// Throws UserError, with the message that the folder is in the way, unless foreign_entry() is
/// empty.
void require_own_folder(const std::string& folder);

/// Removes the folder after require_own_folder(). No-op where it is missing. Throws UserError where
/// it cannot be removed. Leaves it where it holds only removed files that are still open
/// (is_held_name).
void remove_own_folder(const std::string& folder);

}  // namespace longspan
