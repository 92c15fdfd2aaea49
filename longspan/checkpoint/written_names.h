// The files that the program writes into the folder of a model, an adapter or a checkpoint, by
// name: what else is there is somebody else's. No torch.
#pragma once

#include <string>
#include <vector>

namespace longspan {

/// Tokenizer, chat template and generation settings: copied from the model that is trained.
const std::vector<std::string>& tokenizer_file_names();

/// An adapter.
const std::vector<std::string>& adapter_file_names();
/// Configuration and weights of a model, but for weights that are cut into numbered files, of an
/// adapter and of a value head.
const std::vector<std::string>& model_file_names();

/// Is this the path, in such a folder, of a file that the program writes there, or has half-written
/// in this version or an older one (left_temporary.h)?
bool is_written_name(const std::string& name);

/// ".nfs0123456789abcdef00000001": what a disk of the network renames a file to that is removed
/// while somebody holds it open. It goes when that one closes it.
bool is_held_name(const std::string& file_name);

/// Is any file in the folder, or below it, but those that are removed and still held open? True
/// where it cannot be read.
bool holds_files(const std::string& folder);

/// A name that says no more than a place below a folder: relative, without "..", "." or empty
/// parts.
bool is_name_below(const std::string& name);

/// What is in the folder that the program has not written: the path of a file, link, pipe or folder
/// in it that has no such name and is not in the folder's own table of checksums; or "itself", when
/// `folder` is a link, a file or cannot be read. Files that are removed and still held open
/// (is_held_name) are nobody's. Empty: the folder is the program's own, with all in it, or is not
/// there.
std::string foreign_entry(const std::string& folder);

/// Throws UserError where that is not empty, and says that the folder is in the way.
void require_own_folder(const std::string& folder);

/// The same, and then removes the folder, if there is one. Throws also when it cannot; but where
/// only files that somebody still holds open (is_held_name) are left in it, the folder stays.
void remove_own_folder(const std::string& folder);

}  // namespace longspan
