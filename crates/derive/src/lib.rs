//! Derive macro of `backburn::Activations`, exported by `backburn`.

#![warn(missing_docs)]

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Type, parse_macro_input, parse_quote};

/// Implements `Activations` for a struct or an enum whose fields all implement it. No field can be skipped.
#[proc_macro_derive(Activations)]
pub fn activations(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let derived = implementation(item).unwrap_or_else(Error::into_compile_error);
    derived.into()
}

fn implementation(mut item: DeriveInput) -> Result<TokenStream, Error> {
    let arms: Vec<_> = match &item.data {
        Data::Struct(data) => vec![arm(quote!(Self), &data.fields)],
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                arm(quote!(Self::#name), &variant.fields)
            });
            arms.collect()
        }
        Data::Union(_) => {
            let reason = "`Activations` can't be derived for a union, whose active field is unknown: use an enum";
            return Err(Error::new_spanned(&item.ident, reason));
        }
    };
    let generic = generic_types(&item);
    if !generic.is_empty() {
        let conditions = item.generics.make_where_clause();
        // The bounds are on the types of the fields: the parameter of a `Constant` need not be a tensor.
        for field in generic {
            let bound = parse_quote!(#field: ::backburn::Activations);
            conditions.predicates.push(bound);
        }
        let bound = parse_quote!(Self: ::core::clone::Clone + ::core::marker::Send + 'static);
        conditions.predicates.push(bound);
    }
    let name = &item.ident;
    let (parameters, arguments, conditions) = item.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::backburn::Activations for #name #arguments #conditions {
            fn map_floats(self, map: &mut ::backburn::FloatMap<'_>) -> Self {
                match self {
                    #(#arms)*
                }
            }
        }
    })
}

/// Returns the types of fields that mention a type parameter.
fn generic_types(item: &DeriveInput) -> Vec<Type> {
    let parameters: Vec<_> = item.generics.type_params().map(|it| &it.ident).collect();
    let fields: Vec<_> = match &item.data {
        Data::Struct(data) => data.fields.iter().collect(),
        Data::Enum(data) => data.variants.iter().flat_map(|it| &it.fields).collect(),
        Data::Union(_) => Vec::new(),
    };
    let types = fields.into_iter().map(|field| field.ty.clone());
    let is_generic = |of_field: &Type| {
        let tokens = of_field.to_token_stream();
        // A bound on a recursive type would have no end.
        let own = [&item.ident, &format_ident!("Self")];
        mentions(tokens.clone(), &parameters) && !mentions(tokens, &own)
    };
    types.filter(is_generic).collect()
}

/// Returns `true` if one of `names` is among the tokens. A later segment of a path doesn't count (`C::Name`, `module::Name`), unless
/// the path begins with `self` or `crate`.
fn mentions(tokens: TokenStream, names: &[&Ident]) -> bool {
    let (mut colons, mut is_own) = (0, false);
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => {
            let is_item = std::mem::take(&mut colons) == 2;
            is_own =
                ["self", "crate", "$crate"].iter().any(|root| ident == root) || is_item && is_own;
            (!is_item || is_own) && names.contains(&&ident)
        }
        TokenTree::Punct(punct) if punct.as_char() == ':' => {
            colons += 1;
            false
        }
        TokenTree::Group(group) => {
            (colons, is_own) = (0, false);
            mentions(group.stream(), names)
        }
        _ => {
            (colons, is_own) = (0, false);
            false
        }
    })
}

/// Generates the match arm that rebuilds the variant `path` from its mapped fields.
fn arm(path: TokenStream, fields: &Fields) -> TokenStream {
    let members: Vec<_> = fields.members().collect();
    let values: Vec<_> = (0..members.len())
        .map(|index| format_ident!("value_{index}"))
        .collect();
    let mapped = fields.iter().zip(&values).map(|(field, value)| {
        let input = &field.ty;
        // With this span the compiler reports an unsupported type at the field.
        let function =
            quote_spanned!(input.span()=> <#input as ::backburn::Activations>::map_floats);
        quote!(#function(#value, map))
    });
    quote! {
        #path { #(#members: #values),* } => #path { #(#members: #mapped),* },
    }
}
