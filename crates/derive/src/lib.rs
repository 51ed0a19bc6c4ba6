//! Derive macro of `backburn::Activations`, exported by `backburn`.

#![warn(missing_docs)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input, parse_quote};

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
    for parameter in item.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::backburn::Activations));
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
