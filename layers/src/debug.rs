//! `Debug` for types that cannot derive it, because a field or a type parameter does not implement it.

/// Implements `Debug` for a type. The output is the type's name, the listed fields, and `..` for all other
/// fields: `impl[S: Debug, T] Name<S, T> { label: path.of.the.field }`.
macro_rules! debug_fields {
    (impl[$($generics:tt)*] $name:ident$(<$($parameter:ident),+>)? { $($label:ident: $($path:tt).+),* }) => {
        impl<$($generics)*> std::fmt::Debug for $name$(<$($parameter),+>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($label), &self.$($path).+))*
                    .finish_non_exhaustive()
            }
        }
    };
}
